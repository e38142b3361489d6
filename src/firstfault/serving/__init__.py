"""A server over HTTP → files of a bundle, requests and their answers; what they mean is not judged here."""
