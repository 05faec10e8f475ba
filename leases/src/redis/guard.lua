-- Why a grant has to wait, as numbers for the answer.
local WHY = {restarted = 1, empty = 2, evicted = 3}

-- How many microseconds of `longest` have not passed since this server started.
-- The uptime is told in whole seconds of the wall clock, as is the start: it began in the second
-- that is `uptime` before the present one, at its end in the worst case.
local function rest_of_uptime(info, longest, microseconds)
  local uptime = string.match(info, 'uptime_in_seconds:(%-?%d+)')
  return math.max(0, longest - ((uptime - 1) * 1000000 + microseconds))
end

-- Whether something may be granted: nil if so, or else what the caller is to be told: {2, us, why},
-- or an error. `marker` is a key, or nil if it lies in another slot; `longest` is in us, or 0 for a
-- server that forgets nothing.
--
-- The marker is "RUN END WHY": the run of the server, which has a name of its own; the moment until
-- which nothing is granted, or 0 when that has passed; and why. A marker of this run with 0 says
-- that this server has lost nothing since that moment, and asks no clock.
local function guard(marker, longest, starts_empty, time)
  if longest == 0 then return nil end
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    return {err = 'NOPERM this user may not call INFO, which tells when the server started: allow ' ..
      'it (ACL SETUSER name +info), or build the store as durable if the server loses nothing'}
  end
  if not marker then
    local rest = rest_of_uptime(info, longest, tonumber(time[2]))
    if rest == 0 then return nil end
    -- More is left if the clock is behind the server's start.
    return {2, math.min(rest, longest + 1000000), WHY.restarted}
  end
  local now = time[1] * 1000000 + time[2]
  -- A server that does not name its run is asked for its uptime each time.
  local run = string.match(info, 'run_id:(%x+)')
  local found = redis.call('GET', marker)
  local of, ends, why = string.match(found or '', '^(%x+) (%d+) (%a+)$')
  local rest
  if not WHY[why] then
    -- Data were lost at a moment that nobody knows: perhaps just now.
    rest, why = longest, 'empty'
    if starts_empty then
      rest = 0
    elseif string.match(redis.call('INFO', 'stats'), 'evicted_keys:[1-9]') then
      why = 'evicted'
    end
  else
    if of == run and ends == '0' then return nil end
    -- The longest lease is enough from any moment on. More is left if the clock was set back.
    rest = math.max(0, math.min(ends - now, longest))
    if of ~= run then
      local since_start = math.min(rest_of_uptime(info, longest, tonumber(time[2])), longest)
      if since_start >= rest then rest, why = since_start, 'restarted' end
    end
  end
  local written = string.format('%s %.0f %s', run or '0', rest > 0 and now + rest or 0, why)
  if written ~= found then redis.call('SET', marker, written) end
  if rest == 0 then return nil end
  return {2, rest, WHY[why]}
end
