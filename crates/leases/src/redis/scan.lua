-- Tells keys of this node, in steps.
-- KEYS: the marker of a destination, which leads the call to its node, or none at a node of a cluster. ARGV: cursor, pattern,
-- number of keys.
-- Answers {next cursor, {key, ..}}; the cursor is 0 at the end.
return redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
