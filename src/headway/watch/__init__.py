"""`headway watch`: a run's curves, speed, time left, money and last words, live in a terminal. Changes nothing."""
