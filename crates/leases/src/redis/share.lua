-- Acquires a lock in another mode than for one holder alone: a read lock, or a permit. guard.lua stands in
-- front of this script. The head of `mode.rs` has the rules.
--
-- KEYS: lock, token, holders, and the marker if it is checked in the same step.
-- ARGV: 1 to 12 as in acquire.lua, 13 the mode, 14 the number of permits, or 0 for a reader, 15 to 17 as 13 to 15
-- there.
-- Answers as acquire.lua; a grant is {1, token, place, 1 if others may join}.
--
-- The lock is a hash: `mode`; `owner` of the first holder, so that all other scripts find it held; `token` of the
-- readers; `lease`, the greatest one; and for each holder `=SECRET` with "PLACE TOKEN LENGTH OWNERDATA", where LENGTH
-- is that of the owner. It expires with the last lease. The holders are a sorted set: `=SECRET` by the end of
-- its lease in ms, and of permits `pPLACE` for each place that was given back, before all of these. A holder
-- that is released, and whose place stays taken, is `-SECRET` in both. `top` is the number of places that
-- were ever taken. `kept` is until when the set lives at least. `asked` is when a waiting caller in another mode
-- has asked, from the store `asker`, or `*` if callers of several stores have. A place is reserved for the store `turn`
-- until `until`.
local lock, holders, own = KEYS[1], KEYS[3], '=' .. ARGV[10]
local lease, waited, waits, most = tonumber(ARGV[2]), tonumber(ARGV[7]), ARGV[5] == '1', tonumber(ARGV[14])
local found = redis.call('HMGET', lock, 'owner', 'mode', 'lease', 'next', 'since', 'waited', 'asked', 'token', 'top',
  'turn', 'until', own, 'kept', 'asker')
local owner, mode, next, member = found[1], found[2], found[4], found[12]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A lease is over when the server would let a key expire: after its last millisecond.
local count, before, left = 0, nil, nil
if owner and mode ~= ARGV[13] then
  left = redis.call('PTTL', lock)
elseif owner then
  -- Holders whose leases have run out give their places back. The rest of many goes with the next call.
  local over = redis.call('ZRANGEBYSCORE', holders, 0, '(' .. now, 'LIMIT', 0, 500)
  if #over > 0 then
    local facts = redis.call('HMGET', lock, unpack(over))
    redis.call('HDEL', lock, unpack(over))
    for at, fact in ipairs(facts) do
      local place = most > 0 and fact and string.match(fact, '^%d+')
      if place then redis.call('ZADD', holders, place - 100000, 'p' .. place) end
      if over[at] == own then member = false end
    end
    -- A set without members is gone, and one that is made anew does not expire.
    redis.call('ZREM', holders, unpack(over))
  end
  count = redis.call('ZCOUNT', holders, now, '+inf')
  before = member and tonumber(redis.call('ZSCORE', holders, own))
  local turn, reserved = found[10], tonumber(found[11])
  local asked = tonumber(found[7])
  if before then
    left = nil
  elseif member or count == 0 then
    -- Only if the set is lost. Nobody knows how long the holders, and which of them, rely on their leases.
    left = redis.call('PTTL', lock)
  elseif asked and now >= asked and now < asked + 1500 then
    left = math.min(redis.call('PTTL', lock), asked + 1500 - now)
  elseif most > 0 and count >= most then
    -- Who seems to hold a place for more than the longest lease, since the clock was set back: see acquire.lua.
    local longest = tonumber(found[3]) or lease
    local late = redis.call('ZRANGEBYSCORE', holders, '(' .. now + longest, '+inf', 'LIMIT', 0, 500)
    for _, who in ipairs(late) do redis.call('ZADD', holders, now + longest, who) end
    local first = redis.call('ZRANGEBYSCORE', holders, now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    left = first[2] - now
  elseif turn and reserved and reserved > now and reserved <= now + 25 and (waited < tonumber(ARGV[11]) or turn ~= ARGV[8]) then
    left = reserved - now
  end
elseif next and (waited < tonumber(ARGV[11]) or next ~= ARGV[8]) then
  -- The lock is free, but reserved: see acquire.lua.
  local rest = redis.call('PTTL', lock)
  if rest >= 0 and rest <= 25 then left = rest end
end
if left then
  if owner and waits then
    local since = time[1] * 1000 + math.ceil(time[2] / 1000) - waited
    if not found[5] or since + 5 <= tonumber(found[5]) then
      redis.pcall('HSET', lock, 'next', ARGV[8], 'since', string.format('%.0f', since))
    end
    if mode and mode ~= ARGV[13] then
      local is_shared = found[14] and found[14] ~= ARGV[8] and now < (tonumber(found[7]) or 0) + 1500
      redis.pcall('HSET', lock, 'asked', string.format('%.0f', now), 'asker', is_shared and '*' or ARGV[8])
    end
  elseif waits and not found[6] then
    redis.pcall('HSET', lock, 'waited', 1)
  end
  local longest = tonumber(found[3])
  if owner and longest and redis.call('PTTL', lock) > longest then
    redis.call('PEXPIRE', lock, longest)
    left = math.min(left, longest)
  end
  -- See acquire.lua.
  if waits and mode then left = math.min(left, 1000) end
  return {0, left}
end
local wait = guard(KEYS[4] or ARGV[16], tonumber(ARGV[4]), ARGV[6] == '1', time, tonumber(ARGV[12]), true, tonumber(ARGV[15]),
  tonumber(ARGV[17]))
if wait then return wait end
local token, place
if member then
  -- The same secret again, by a request that was repeated.
  place, token = string.match(member, '^(%d+) (%d+)')
elseif owner and most == 0 then
  token, place = found[8], 0
else
  local last = redis.call('GET', KEYS[2]) or 0
  token = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
  redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
  place = 0
end
if not owner then
  -- A set may be left of holders before.
  redis.call('DEL', holders)
elseif member then
  -- What was extended meanwhile must not become shorter.
  lease = math.max(lease, before - now)
end
local top = tonumber(found[9]) or 0
if most > 0 and owner and not member then
  local free = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  if free[2] and tonumber(free[2]) < 0 then
    place = free[2] + 100000
    redis.call('ZREM', holders, free[1])
  else
    place = top
  end
end
local fact = not member and string.format('%d %s %d %s%s', place, token, #ARGV[1], ARGV[1], ARGV[9])
-- The set comes first. So a user who may not call ZADD leaves nothing that is held.
redis.call('ZADD', holders, now + lease, own)
-- The set goes later than the lock, so that a lock is never found without its holders. It lives for many leases, so
-- that few renewals have to prolong it.
local kept = owner and tonumber(found[13]) or 0
if kept < now + lease + 1000 then
  redis.call('PEXPIRE', holders, 10 * lease + 1000)
  kept = now + 10 * lease
end
kept = string.format('%.0f', kept)
if not owner then
  redis.call('HSET', lock, 'owner', ARGV[1], 'mode', ARGV[13], 'token', token, 'lease', ARGV[2], 'kept', kept, own, fact,
    'top', 1)
  if next then redis.call('HDEL', lock, 'next', 'since') end
  redis.call('PEXPIRE', lock, lease)
else
  local longest = math.max(tonumber(ARGV[2]), tonumber(found[3]) or 0)
  if fact then
    redis.call('HSET', lock, own, fact, 'lease', longest, 'kept', kept, 'top', math.max(top, place + 1))
    if found[10] then redis.call('HDEL', lock, 'turn', 'until') end
    -- The wait that is noted for this store may be over now. Others of it note theirs when they ask again.
    if waited > 0 and next == ARGV[8] then
      redis.call('HDEL', lock, 'next', 'since')
      redis.call('HSET', lock, 'waited', 1)
    end
  else
    redis.call('HSET', lock, 'lease', longest, 'kept', kept)
  end
  if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, lease) end
end
-- Also after a grant that is repeated: the answer before, which wakes the next one, may be lost.
local room = most == 0 or count + (member and 0 or 1) < most
return {1, tonumber(token), tonumber(place), room and 1 or 0}
