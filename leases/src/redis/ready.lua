-- KEYS: a marker. ARGV: longest lease in us, or 0, and 1 if the server starts empty on purpose.
-- Answers as acquire.lua does, and {1, 0} if something may be granted.
return guard(KEYS[1], tonumber(ARGV[1]), ARGV[2] == '1', redis.call('TIME')) or {1, 0}
