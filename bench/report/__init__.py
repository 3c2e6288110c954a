"""What becomes of runs: records that compare them, tables, pictures, and where they ran."""
