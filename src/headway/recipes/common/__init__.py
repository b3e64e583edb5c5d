"""What several recipes share."""
