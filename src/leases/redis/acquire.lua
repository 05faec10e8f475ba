-- KEYS: lock, token. ARGV: owner, lease in ms, life of the token in ms, longest lease in us, or 0
-- for a server that forgets nothing, 1 if the caller goes on to wait, for how many ms it has waited if
-- that is a turn or longer, else 0, and the store that asks.
-- Answers {0, ms left}: held; {1, token}: granted; {2, us}: nothing is granted yet after a restart.
local found = redis.call('HMGET', KEYS[1], 'owner', 'next', 'since')
local owner, turn, waited = found[1], found[2], tonumber(ARGV[6])
local held = owner and owner ~= ARGV[1]
-- Released, and reserved for a store in which somebody has waited for a turn. One that lasts longer
-- than any release makes it, since the clock was set back, is none.
if not owner and turn and (waited == 0 or turn ~= ARGV[7]) then
  local left = redis.call('PTTL', KEYS[1])
  held = left >= 0 and left <= 25
end
if held then
  -- What a full server does not note is not announced: who waits asks again.
  local waits = ARGV[5] == '1'
  if waits then redis.pcall('HSET', KEYS[1], 'waited', 1) end
  -- The turn after this holding goes to who has waited longest.
  if owner and waits and waited > 0 then
    local time = redis.call('TIME')
    local since = time[1] * 1000 + math.floor(time[2] / 1000) - waited
    if not found[3] or since < tonumber(found[3]) then
      redis.pcall('HSET', KEYS[1], 'next', ARGV[7], 'since', string.format('%.0f', since))
    end
  end
  return {0, redis.call('PTTL', KEYS[1])}
end
local time = redis.call('TIME')
local rest = rest_of_guard(tonumber(ARGV[4]), tonumber(time[2]))
if rest > 0 then return {2, rest} end
local last = redis.call('GET', KEYS[2]) or 0
local token = math.max(last + 1, time[1] * 1000000 + time[2])
local written = string.format('%.0f', token)
redis.call('SET', KEYS[2], written, 'PX', ARGV[3])
-- The reservation has been used. What was noted meanwhile of others who wait stays.
if turn and not owner then redis.call('HDEL', KEYS[1], 'next', 'since') end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'count', 1, 'token', written)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, token}
