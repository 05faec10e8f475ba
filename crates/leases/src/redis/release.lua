-- Releases a lock.
-- KEYS: lock. ARGV: 1 secret, 2 channel, 3 message, 4 for how many ms it stays locked, 5 how many ms
-- are a turn. Answers 1: released; 0: it is not held with this secret.
-- With an empty channel the release is not announced and nothing is reserved: the lock could not be
-- granted to anybody now.
local held = redis.call('HMGET', KEYS[1], 'secret', 'waited', 'next', 'since', 'owner')
if held[1] ~= ARGV[1] then return 0 end
-- The lock stays locked for a while, without a secret: a renewal that arrives later finds nothing.
-- Without free memory the owner is shown as before. The waiting caller asks again, and learns when it
-- will be free.
local rest = tonumber(ARGV[4] or '0')
if rest > 0 then
  redis.call('HDEL', KEYS[1], 'secret', 'ticket', 'detached', 'terms')
  redis.pcall('HSET', KEYS[1], 'owner', (held[5] or '') .. ' (released)')
  redis.call('PEXPIRE', KEYS[1], rest)
  if held[2] or held[3] then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
  return 1
end
redis.call('DEL', KEYS[1])
if ARGV[2] == '' then return 1 end
-- Reserve the lock for the store in which a caller has waited for a turn. The reservation lasts for
-- a quarter of that wait, from 5 ms to 25 ms. A server without free memory reserves nothing.
if held[3] then
  local time = redis.call('TIME')
  local waited = time[1] * 1000 + time[2] / 1000 - held[4]
  local rest = math.floor(math.max(5, math.min(waited / 4, 25)))
  if waited >= tonumber(ARGV[5]) and type(redis.pcall('HSET', KEYS[1], 'next', held[3])) == 'number' then
    redis.call('PEXPIRE', KEYS[1], rest)
  end
end
-- The lock is released even if the release can't be announced: waiting callers ask again.
if held[2] or held[3] then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1
