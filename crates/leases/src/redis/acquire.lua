-- Acquires a lock. guard.lua stands in front of this script.
--
-- KEYS: lock, token, and the marker if it is checked in the same step.
-- ARGV: 1 owner, 2 lease in ms, 3 life of the token in ms, 4 the greatest longest lease that the store
-- knows of in us, or 0 for a server that forgets nothing, 5 is 1 if the caller goes on to wait, 6 is 1
-- if the server starts empty on purpose, 7 how many ms the caller has waited, 8 the store, 9 what the
-- caller says about itself, 10 the secret, 11 how many ms are a turn, 12 the store's own longest lease
-- in us, or 0 if it may differ from that of others, 13 the epoch of the connection, or -1, 14 in a
-- cluster the marker of this node, which lies in another slot than the lock (CLUSTER-3), 15 the slot of the lock.
-- Answers {0, ms left}: held; {1, token}: granted; {2, us, why}: nothing is granted yet; {3, us}: other
-- stores have that longest lease.
local found = redis.call('HMGET', KEYS[1], 'owner', 'waited', 'lease', 'next', 'since', 'secret', 'mode')
local owner, turn, waited = found[1], found[4], tonumber(ARGV[7])
local held = owner and found[6] ~= ARGV[10]
-- The lock is released, but reserved for a store in which a caller has waited for a turn. If the
-- clock was set back, a reservation may last longer than any release makes it. Then it does not
-- count.
if not owner and turn and (waited < tonumber(ARGV[11]) or turn ~= ARGV[8]) then
  local left = redis.call('PTTL', KEYS[1])
  held = left >= 0 and left <= 25
end
if held then
  local waits = ARGV[5] == '1'
  -- The release is announced, and the next turn goes to the store whose caller has waited longest. The
  -- others write nothing, since each write goes to the replicas and the append-only file. So a
  -- difference of less than 5 ms, which may come from reading the clock twice, is not written. The
  -- release decides whether that wait was a turn by then. If a server without free memory does not
  -- write it, the callers find the release by asking again.
  if owner and waits then
    local time = redis.call('TIME')
    -- Rounded up. So the caller, which counts from the same moment, is due when the release says so.
    local since = time[1] * 1000 + math.ceil(time[2] / 1000) - waited
    if not found[5] or since + 5 <= tonumber(found[5]) then
      redis.pcall('HSET', KEYS[1], 'next', ARGV[8], 'since', string.format('%.0f', since))
    end
    -- Nobody joins the readers, or the holders of permits, while this caller waits: see share.lua.
    if found[7] then
      local now, noted = time[1] * 1000 + math.floor(time[2] / 1000), redis.call('HMGET', KEYS[1], 'asked', 'asker')
      local is_shared = noted[2] and noted[2] ~= ARGV[8] and now < (tonumber(noted[1]) or 0) + 1500
      redis.pcall('HSET', KEYS[1], 'asked', string.format('%.0f', now), 'asker', is_shared and '*' or ARGV[8])
    end
  -- The reservation is another store's. So the next holder's release is announced for this caller.
  elseif waits and not found[2] then
    redis.pcall('HSET', KEYS[1], 'waited', 1)
  end
  local left, lease = redis.call('PTTL', KEYS[1]), tonumber(found[3])
  -- If the clock was set back, more than the whole lease is left. The holder relies on its lease
  -- for at most one lease, counted from a renewal in the past. So the rest can be cut to one lease.
  if lease and left > lease then
    left = lease
    redis.call('PEXPIRE', KEYS[1], left)
  end
  -- Who waits for readers or permits has to ask again before 1.5 s are over.
  if waits and found[7] then left = math.min(left, 1000) end
  return {0, left}
end
local time = redis.call('TIME')
local wait = guard(KEYS[3] or ARGV[14], tonumber(ARGV[4]), ARGV[6] == '1', time, tonumber(ARGV[12]), true, tonumber(ARGV[13]),
  tonumber(ARGV[15]))
if wait then return wait end
-- A token is the time, or the last token plus 1 if the clock is behind it. So tokens also grow
-- after the last one was forgotten.
local last = redis.call('GET', KEYS[2]) or 0
local token = math.max(last + 1, time[1] * 1000000 + time[2])
local written = string.format('%.0f', token)
redis.call('SET', KEYS[2], written, 'PX', ARGV[3])
-- The same secret again, by a request that was repeated: it must not shorten a lease that was extended
-- meanwhile.
if owner and redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], 'token', written)
  return {1, token}
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'secret', ARGV[10], 'count', 1, 'token', written, 'lease', ARGV[2])
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'data', ARGV[9]) end
-- The reservation is used up. `waited`, which another waiting caller may have set, stays. Not before the
-- owner is there: a hash without fields is gone, and can't be made anew in a slot that moves.
if turn and not owner then redis.call('HDEL', KEYS[1], 'next', 'since') end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, token}
