-- Renews a lease.
-- KEYS: lock. ARGV: secret, lease in ms, count, 1 if the lease must not become shorter. Answers 1: renewed; 0: it is not held with this secret.
local held = redis.call('HMGET', KEYS[1], 'secret', 'count', 'lease')
if held[1] ~= ARGV[1] then return 0 end
-- A request that arrives late must not shorten what a later one has extended.
-- If more than the whole lease is left, the clock was set back, and a waiting caller may cut it.
local left = ARGV[4] == '1' and redis.call('PTTL', KEYS[1]) or 0
if left >= tonumber(ARGV[2]) and left <= (tonumber(held[3]) or left) then return 1 end
-- Write the length of the lease before moving its end: a waiting caller may cut the remaining time
-- to the length that is written here.
if held[3] and held[3] ~= ARGV[2] then redis.call('HSET', KEYS[1], 'lease', ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- Write the count only when it changes, since each write goes to the replicas and the append-only
-- file. `pcall`, since the count decides nothing: a server without free memory renews all the same.
if held[2] ~= ARGV[3] then redis.pcall('HSET', KEYS[1], 'count', ARGV[3]) end
return 1
