-- Tells who holds a lock.
-- KEYS: lock. Answers {}: nobody; {owner, token, ms left, data}; for readers and permits {owner, token, ms left, data,
-- mode, number of holders}, of the one whose lease ends last. The time is negative without an expiry.
local held = redis.call('HMGET', KEYS[1], 'owner', 'token', 'data', 'mode')
if not held[1] then return {} end
local left = redis.call('PTTL', KEYS[1])
if not held[4] then return {held[1], held[2], left, held[3] or ''} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Not among the keys: those of a slot that moves are not together, and most locks have no such set.
local holders = string.gsub(KEYS[1], 'lock$', 'holders')
local last = redis.pcall('ZRANGE', holders, -1, -1, 'WITHSCORES')
local fact = last[2] and tonumber(last[2]) >= now and redis.call('HGET', KEYS[1], last[1])
if not fact then return {held[1], held[2], left, '', held[4], 1} end
local _, token, length, at = string.match(fact, '^(%d+) (%d+) (%d+) ()')
local owner, data = string.sub(fact, at, at + length - 1), string.sub(fact, at + length)
return {owner, token, math.min(left, last[2] - now), data, held[4], redis.call('ZCOUNT', holders, now, '+inf')}
