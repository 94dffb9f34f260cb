"""The compiled inner loop of a replica: plain arrays in, plain arrays out."""
