-- Ends the reservation of a name for a store in which nobody waits any more.
-- KEYS: lock. ARGV: the store, channel, message. Answers 1: ended; 0: the name was not reserved for it.
local held = redis.call('HMGET', KEYS[1], 'owner', 'next', 'asker')
-- Readers and permits need not wait for a caller that has gone. While there are others (`*`), they do.
if held[3] == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'asked', 'asker')
  redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
if held[2] ~= ARGV[1] then return 0 end
if held[1] then
  redis.call('HDEL', KEYS[1], 'next', 'since')
  -- Callers of other stores, who have waited for less, have written nothing.
  redis.pcall('HSET', KEYS[1], 'waited', 1)
else
  -- The name is free from now on, also for those who were refused meanwhile.
  redis.call('DEL', KEYS[1])
  redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
return 1
