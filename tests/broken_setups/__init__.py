"""The gallery of broken set-ups, each from a complaint of real users; one module per cause."""
