-- How many microseconds of `longest` have not passed since this server started; 0 if all have.
-- The uptime is told in whole seconds of the wall clock, as is the start: it began in the second
-- that is `uptime` before the present one, at its end in the worst case.
local function rest_of_guard(longest, microseconds)
  if longest == 0 then return 0 end
  local uptime = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%-?%d+)')
  return math.max(0, longest - ((uptime - 1) * 1000000 + microseconds))
end
