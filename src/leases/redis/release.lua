-- KEYS: lock. ARGV: owner, channel or nothing, message. Answers 1: released; 0: not this owner's.
local held = redis.call('HMGET', KEYS[1], 'owner', 'waited')
if held[1] ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- What can't be announced is released all the same: who waits asks again.
if held[2] and ARGV[2] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1
