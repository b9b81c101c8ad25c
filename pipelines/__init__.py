"""The builds of dataprep as Apache Beam pipelines."""
