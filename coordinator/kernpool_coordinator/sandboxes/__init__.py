"""Sandboxes: who has which, bulk creates split over the nodes, removal, pools."""
