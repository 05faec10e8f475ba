-- Renews the lease of a reader or a permit. share.lua describes the keys.
-- KEYS: lock, holders. ARGV: secret, lease in ms, 1 if the lease must not become shorter. Answers as renew.lua.
local own, lease = '=' .. ARGV[1], tonumber(ARGV[2])
local before = tonumber(redis.call('ZSCORE', KEYS[2], own) or -1)
if before < 0 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The lock may be somebody else's by now, if it was deleted, and the set was not.
local found = redis.call('HMGET', KEYS[1], 'lease', own)
local longest = found[1]
if not longest or not found[2] or before < now then return 0 end
if ARGV[3] == '1' and before >= now + lease then return 1 end
-- Before the end: see renew.lua.
if lease > tonumber(longest) then redis.call('HSET', KEYS[1], 'lease', ARGV[2]) end
-- This write comes first, since a server without free memory takes the next one after it. The set goes later
-- than the lock, so that a lock is never found without its holders.
local left = math.max(redis.call('PTTL', KEYS[1]), lease)
redis.call('PEXPIRE', KEYS[2], left + 1000)
redis.call('ZADD', KEYS[2], now + lease, own)
if now + lease < before then
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  left = math.max(last[2] - now, 1)
end
redis.call('PEXPIRE', KEYS[1], left)
return 1
