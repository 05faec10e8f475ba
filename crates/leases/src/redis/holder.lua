-- Tells who holds a lock.
-- KEYS: lock. Answers {}: nobody; {owner, token, ms left, data}. The time is negative
-- without an expiry.
local held = redis.call('HMGET', KEYS[1], 'owner', 'token', 'data')
if not held[1] then return {} end
return {held[1], held[2], redis.call('PTTL', KEYS[1]), held[3] or ''}
