"""Whether a configuration can run: the rules, the reasons that they give, and the words for each surface."""
