-- Releases the lock of a reader, or a permit. share.lua describes the keys.
-- KEYS: lock, holders. ARGV and answers as those of release.lua.
local own, rest = '=' .. ARGV[1], tonumber(ARGV[4] or '0')
local ends = tonumber(redis.call('ZSCORE', KEYS[2], own) or -1)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], own, 'mode', 'waited', 'next', 'since', 'asked', 'lease')
local fact, next = found[1], found[4]
if ends < now or not fact then return 0 end
local is_last = rest == 0 and redis.call('ZCARD', KEYS[2]) == 1
if not is_last then
  redis.call('HDEL', KEYS[1], own)
  if rest > 0 then
    -- Without a secret: a renewal that arrives later finds nothing.
    local place, token, length, at = string.match(fact, '^(%d+) (%d+) (%d+) ()')
    local owner = string.sub(fact, at, at + length - 1) .. ' (released)'
    fact = string.format('%s %s %d %s%s', place, token, #owner, owner, string.sub(fact, at + length))
    redis.call('HSET', KEYS[1], '-' .. ARGV[1], fact)
    redis.call('ZADD', KEYS[2], now + rest, '-' .. ARGV[1])
    redis.call('PEXPIRE', KEYS[2], 10 * math.max(rest, tonumber(found[7]) or 0) + 1000)
  elseif found[2] ~= 's' then
    local place = string.match(fact, '^%d+')
    redis.call('ZADD', KEYS[2], place - 100000, 'p' .. place)
  end
  -- A set without members is gone, and can't be made anew in a slot that moves.
  redis.call('ZREM', KEYS[2], own)
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  is_last = not last[2] or tonumber(last[2]) < now
  -- The lock expires with the lease that ends last now.
  if not is_last then redis.call('PEXPIRE', KEYS[1], math.max(last[2] - now, 1)) end
end
if is_last then redis.call('DEL', KEYS[1], KEYS[2]) end
if ARGV[2] == '' then return 1 end
local asked = tonumber(found[6])
local waits_other = asked and now >= asked and now < asked + 1500
-- A reader that goes makes no room, and nobody gets a place while a caller in another mode waits.
if not is_last and rest == 0 and (found[2] == 's' or waits_other) then return 1 end
if next and rest == 0 then
  -- Reserve the lock, or the place, for the store in which a caller has waited for a turn: see release.lua.
  local waited = time[1] * 1000 + time[2] / 1000 - found[5]
  local turn = math.floor(math.max(5, math.min(waited / 4, 25)))
  if waited >= tonumber(ARGV[5]) then
    if not is_last then
      redis.call('HDEL', KEYS[1], 'next', 'since')
      -- Others may wait beside this one, who have written nothing.
      redis.pcall('HSET', KEYS[1], 'waited', 1)
      redis.pcall('HSET', KEYS[1], 'turn', next, 'until', string.format('%.0f', now + turn))
    elseif type(redis.pcall('HSET', KEYS[1], 'next', next)) == 'number' then
      redis.call('PEXPIRE', KEYS[1], turn)
    end
  end
end
if found[3] or next then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1
