"""The transaction coordinator's pure part: one shard's transactional ids, as a function of ``__transaction_state``."""
