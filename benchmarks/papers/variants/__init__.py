"""What the papers' comparisons need and dpjax does not: written on its public classes alone."""
