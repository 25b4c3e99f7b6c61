"""Turn the finished cells of a comparison into tables, verdicts and an answer in words."""
