"""Quality of embeddings on imbalanced tables, against what is in use today."""
