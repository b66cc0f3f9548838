"""The engine of the validation farm: everything that knows Ray, pandas, Parquet and the cluster."""
