-- Renews the lease of a reader or a permit. share.lua describes the keys.
-- KEYS: lock, holders. ARGV: secret, lease in ms, 1 if the lease must not become shorter. Answers as renew.lua.
local own, lease = '=' .. ARGV[1], tonumber(ARGV[2])
local before = tonumber(redis.call('ZSCORE', KEYS[2], own) or -1)
if before < 0 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The lock may be somebody else's by now, if it was deleted, and the set was not.
local found = redis.call('HMGET', KEYS[1], 'lease', own, 'kept')
local longest = tonumber(found[1])
if not longest or not found[2] or before < now then return 0 end
-- An end that is later than any lease makes it does not count: the clock was set back.
if ARGV[3] == '1' and before >= now + lease and before <= now + longest then return 1 end
-- Before the end: see renew.lua.
if lease > longest then redis.call('HSET', KEYS[1], 'lease', ARGV[2]) end
-- Another holder may have a longer lease.
local left = lease
if lease < longest then left = math.max(redis.call('PTTL', KEYS[1]), lease) end
-- This write comes first, since a server without free memory takes the next ones after it.
redis.call('PEXPIRE', KEYS[1], left)
redis.call('ZADD', KEYS[2], now + lease, own)
if (tonumber(found[3]) or 0) < now + left + 1000 then
  redis.call('PEXPIRE', KEYS[2], 10 * left + 1000)
  redis.call('HSET', KEYS[1], 'kept', string.format('%.0f', now + 10 * left))
end
if now + lease < before then
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  redis.call('PEXPIRE', KEYS[1], math.max(last[2] - now, 1))
end
return 1
