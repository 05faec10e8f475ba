-- KEYS: lock. ARGV: owner, channel, message. Answers 1: released; 0: not this owner's. With an empty
-- channel nothing is announced or reserved: nobody could be granted it.
local held = redis.call('HMGET', KEYS[1], 'owner', 'waited', 'next', 'since')
if held[1] ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[2] == '' then return 1 end
-- Reserved for a moment for the store in which somebody has waited for a turn: for a quarter of that
-- wait, 5 ms at least and 25 ms at most. A server that is full reserves nothing.
if held[3] then
  local time = redis.call('TIME')
  local waited = time[1] * 1000 + time[2] / 1000 - held[4]
  local rest = math.floor(math.max(5, math.min(waited / 4, 25)))
  if type(redis.pcall('HSET', KEYS[1], 'next', held[3])) == 'number' then
    redis.call('PEXPIRE', KEYS[1], rest)
  end
end
-- What can't be announced is released all the same: who waits asks again.
if held[2] or held[3] then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1
