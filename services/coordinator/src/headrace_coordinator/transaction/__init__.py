"""The pure part of the transaction coordinator: the transactional ids of one shard, derived from the records of
``__transaction_state``."""
