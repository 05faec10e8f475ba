-- KEYS: lock, token, and the marker if it is to be looked at in the same step. ARGV: owner, lease in
-- ms, life of the token in ms, longest lease in us, or 0 for a server that forgets nothing, 1 if the
-- caller waits, 1 if the server starts empty on purpose.
-- Answers {0, ms left}: held; {1, token}: granted; {2, us, why}: nothing is granted yet.
local held = redis.call('HMGET', KEYS[1], 'owner', 'waited', 'lease')
if held[1] and held[1] ~= ARGV[1] then
  -- Only the first waiter writes, since each write goes to the replicas and the append-only file.
  -- What a full server does not note is not announced: who waits asks again.
  if ARGV[5] == '1' and not held[2] then redis.pcall('HSET', KEYS[1], 'waited', 1) end
  local left, lease = redis.call('PTTL', KEYS[1]), tonumber(held[3])
  -- More than the whole lease is left if the clock was set back. The holder believes in it for one
  -- lease at most, counted from a renewal that is already past.
  if lease and left > lease then
    left = lease
    redis.call('PEXPIRE', KEYS[1], left)
  end
  return {0, left}
end
local time = redis.call('TIME')
local wait = guard(KEYS[3], tonumber(ARGV[4]), ARGV[6] == '1', time)
if wait then return wait end
local last = redis.call('GET', KEYS[2]) or 0
local token = math.max(last + 1, time[1] * 1000000 + time[2])
local written = string.format('%.0f', token)
redis.call('SET', KEYS[2], written, 'PX', ARGV[3])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'count', 1, 'token', written, 'lease', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, token}
