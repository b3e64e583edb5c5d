"""Failures with a name, by where they come from. Each was printed by the real tool; tests/diagnose/ holds the"
" messages."""
