"""What a person sees while a program runs and when it prints: progress bars and cards."""
