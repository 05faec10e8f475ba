-- KEYS: any, to be sent where a lock would be. ARGV: longest lease in us, or 0. Answers the us for
-- which nothing is granted yet.
return rest_of_guard(tonumber(ARGV[1]), tonumber(redis.call('TIME')[2]))
