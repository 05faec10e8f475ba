-- Checks whether locks may be granted.
-- KEYS: a marker, or none at a node of a cluster. ARGV: the longest lease in us, or 0; 1 if the server starts empty on purpose; the
-- store's own longest lease in us, or 0 if it may differ from that of others; 1 if a lock has
-- been granted, and this decides whether it is kept; the epoch of the connection, or -1; at a node
-- of a cluster its marker, and the slot of that.
-- Answers {1, 0} if locks may be granted, or else what acquire.lua answers.
return guard(KEYS[1] or ARGV[6], tonumber(ARGV[1]), ARGV[2] == '1', redis.call('TIME'), tonumber(ARGV[3]), ARGV[4] == '1',
  tonumber(ARGV[5]), tonumber(ARGV[7]))
  or {1, 0}
