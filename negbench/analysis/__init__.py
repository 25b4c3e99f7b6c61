"""From the finished cells of a comparison to tables, verdicts and an answer in words."""
