"""Reports for people: tables, progress, checks of the installation."""
