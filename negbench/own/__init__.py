"""Your data and your machine, without a comparison: recipes from a folder, audit, mining, embedding, check-up."""
