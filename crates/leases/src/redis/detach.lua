-- Detaches a lock from its holder.
-- KEYS: lock. ARGV: secret, ticket, its lease in ms after it is resumed, terms. Answers 1: detached; 0: it is not held with this
-- secret.
if redis.call('HGET', KEYS[1], 'secret') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'ticket', ARGV[2], 'detached', ARGV[3], 'terms', ARGV[4])
return 1
