-- Tells who holds a lock.
-- KEYS: lock. Answers {}: nobody; {owner, token, ms left}, where the last one is negative without an expiry.
local held = redis.call('HMGET', KEYS[1], 'owner', 'token')
if not held[1] then return {} end
return {held[1], held[2], redis.call('PTTL', KEYS[1])}
