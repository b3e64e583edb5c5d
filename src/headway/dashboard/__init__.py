"""`headway ui`: all runs in a browser, read from their folders. No database."""
