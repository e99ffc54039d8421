"""The gallery of broken set-ups: each from a complaint of real users, by what it breaks by."""
