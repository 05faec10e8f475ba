-- Gives a detached lock to another owner. The ticket is used up in the same step.
-- KEYS: lock. ARGV: 1 ticket, 2 owner, 3 secret, 4 what the caller says about itself, 5 the longest lease in ms.
-- Answers {0}: it is not detached with this ticket; {1, token, terms}: resumed; {2, ms}: it was detached with a lease of this
-- length, which is longer than the longest one.
local held = redis.call('HMGET', KEYS[1], 'secret', 'ticket', 'detached', 'token', 'terms')
-- The same secret already: the request was repeated, since its answer was lost.
local again = held[1] == ARGV[3]
if not held[3] or not (again or held[2] == ARGV[1]) then return {0} end
local lease = tonumber(held[3])
if lease > tonumber(ARGV[5]) then return {2, lease} end
if not again then
  -- Without free memory this fails, and the ticket is still of use.
  redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'secret', ARGV[3], 'count', 1, 'data', ARGV[4])
  redis.call('HDEL', KEYS[1], 'ticket')
end
-- A request that arrives late must not shorten what a later one has extended.
if redis.call('PTTL', KEYS[1]) < lease then
  redis.call('HSET', KEYS[1], 'lease', held[3])
  redis.call('PEXPIRE', KEYS[1], lease)
end
return {1, held[4], held[5]}
