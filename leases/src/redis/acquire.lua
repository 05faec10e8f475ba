-- KEYS: lock, token, and the marker if it is to be looked at in the same step. ARGV: owner, lease in
-- ms, life of the token in ms, longest lease in us, or 0 for a server that forgets nothing, 1 if the
-- caller goes on to wait, 1 if the server starts empty on purpose, for how many ms the caller has
-- waited if that is a turn or longer, else 0, and the store that asks.
-- Answers {0, ms left}: held; {1, token}: granted; {2, us, why}: nothing is granted yet.
local found = redis.call('HMGET', KEYS[1], 'owner', 'waited', 'lease', 'next', 'since')
local owner, turn, waited = found[1], found[4], tonumber(ARGV[7])
local held = owner and owner ~= ARGV[1]
-- Released, and reserved for a store in which somebody has waited for a turn. One that lasts longer
-- than any release makes it, since the clock was set back, is none.
if not owner and turn and (waited == 0 or turn ~= ARGV[8]) then
  local left = redis.call('PTTL', KEYS[1])
  held = left >= 0 and left <= 25
end
if held then
  local waits = ARGV[5] == '1'
  -- Only the first waiter writes, since each write goes to the replicas and the append-only file.
  -- What a full server does not note is not announced: who waits asks again.
  if waits and not found[2] then redis.pcall('HSET', KEYS[1], 'waited', 1) end
  -- The turn after this holding goes to who has waited longest. A difference of less than 5 ms is that
  -- of two readings of the clock, and not worth a write.
  if owner and waits and waited > 0 then
    local time = redis.call('TIME')
    local since = time[1] * 1000 + math.floor(time[2] / 1000) - waited
    if not found[5] or since + 5 <= tonumber(found[5]) then
      redis.pcall('HSET', KEYS[1], 'next', ARGV[8], 'since', string.format('%.0f', since))
    end
  end
  local left, lease = redis.call('PTTL', KEYS[1]), tonumber(found[3])
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
-- The reservation has been used. What was noted meanwhile of others who wait stays.
if turn and not owner then redis.call('HDEL', KEYS[1], 'next', 'since') end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'count', 1, 'token', written, 'lease', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, token}
