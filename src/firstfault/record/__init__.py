"""The contract on disk that writer and reader share."""
