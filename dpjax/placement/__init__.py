"""Where records lie: on one device or several, in several processes, on disk."""
