"""What people look at: reports, terminal tables, MLflow views, traces. Reads results only."""
