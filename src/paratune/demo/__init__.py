"""Demo data set: 3,000 sentences with a sentiment label, CC BY 4.0; see ATTRIBUTION.md."""
