-- KEYS: lock. ARGV: owner, lease in ms, count. Answers 1: renewed; 0: not this owner's.
local held = redis.call('HMGET', KEYS[1], 'owner', 'count', 'lease')
if held[1] ~= ARGV[1] then return 0 end
-- Before the end is moved: who waits may cut what is left to the lease that is noted.
if held[3] and held[3] ~= ARGV[2] then redis.call('HSET', KEYS[1], 'lease', ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- Replicas and the append-only file hear of the count only when it changes. It decides nothing: a
-- server that is full, and takes no new data, renews all the same.
if held[2] ~= ARGV[3] then redis.pcall('HSET', KEYS[1], 'count', ARGV[3]) end
return 1
