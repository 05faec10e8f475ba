-- The reasons why grants have to wait, as numbers for the answer.
local WHY = {restarted = 1, empty = 2, evicted = 3}
-- For so long after a failover, in us, holders may renew on the server that was replaced (SENTINEL-3).
local LATER = 10000000

-- Returns how much of `longest` is left, counted from the start of this server, in us.
--
-- The server reports its uptime in whole seconds of the wall clock. It started in the second that
-- is `uptime` seconds before the current one, in the worst case at the end of that second.
local function rest_of_uptime(info, longest, microseconds)
  local uptime = string.match(info, 'uptime_in_seconds:(%-?%d+)')
  return math.max(0, longest - ((uptime - 1) * 1000000 + microseconds))
end

-- Decides whether locks may be granted. Returns nil if so. Otherwise it returns the answer for the
-- caller: {2, us, why}, {3, us}, or an error. `marker` is a key, or nil if it lies in another slot.
-- `longest` is the greatest longest lease that the store knows of, in us, or 0 for a server that
-- forgets nothing. `own` is its own one, or 0 if it may differ from that of others.
--
-- `epoch` is that of the connection, or -1 without Sentinels and cluster.
--
-- The marker is the text "RUN END WHY LONGEST", with " EPOCH" behind it once one is known. RUN is the id of
-- the server's run. END is the time until which nothing is granted, or 0 when that time has passed. WHY
-- is the reason. A marker of this run with END 0 says that this server has lost nothing since that time;
-- it needs no clock. LONGEST is the greatest longest lease of all stores that have asked for a lock, in
-- us. A store with a smaller one would wait for too short a time after a loss, when nothing tells it of
-- the others. So it is granted nothing: {3, LONGEST}. A store with a greater one `raises` LONGEST. The
-- last loss was waited out for the smaller one, so it waits for the difference, if it waits for losses
-- at all.
--
-- EPOCH is the number of the last failover, or of the last move of a slot to this node of a cluster. A greater one says that there was another failover since,
-- which may have lost what was not replicated yet. So does another run of a server that Sentinels watch:
-- the uptime of a replica that was promoted excuses nothing, and Sentinels that were set up anew count
-- from 0 again. A smaller number says that the connection is from before the last failover, so that
-- its server may not be the master.
local function guard(marker, longest, starts_empty, time, own, raises, epoch)
  if longest == 0 then return nil end
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    if string.find(info.err or '', 'nknown') then
      return {err = 'ERR this server has no command INFO, which tells when it started: it may be renamed or ' ..
        'disabled (rename-command). Allow it, or build the store as durable if the server loses nothing'}
    end
    return {err = 'NOPERM this user may not call INFO, which tells when the server started: allow ' ..
      'it (ACL SETUSER name +info), or build the store as durable if the server loses nothing'}
  end
  if not marker then
    local rest = rest_of_uptime(info, longest, tonumber(time[2]))
    if rest == 0 then return nil end
    -- More than `longest` is left if the clock is behind the server's start.
    return {2, math.min(rest, longest + 1000000), WHY.restarted}
  end
  local now = time[1] * 1000000 + time[2]
  -- If a server does not report its run, its uptime is checked each time.
  local run = string.match(info, 'run_id:(%x+)')
  local found = redis.call('GET', marker)
  local of, ends, why, known, last = string.match(found or '', '^(%x+) (%d+) (%a+) (%d+) ?(%d*)$')
  known, last = tonumber(known) or 0, tonumber(last) or -1
  local watched = epoch >= 0
  if watched and epoch < last then
    return {err = string.format('READONLY the connection is of epoch %.0f, and epoch %.0f has begun: another ' ..
      'server may be the master. If the servers were set up anew, delete the key %s', epoch, last, marker)}
  end
  epoch = math.max(epoch, last)
  local later = epoch >= 0 and LATER or 0
  local raised = longest > known
  longest = math.max(longest, known)
  if own > 0 and own < longest then return {3, longest} end
  local rest
  if not WHY[why] then
    -- There is no valid marker: data were lost at an unknown time, perhaps just now.
    rest, why = longest + later, 'empty'
    if starts_empty then
      rest = 0
    elseif string.match(redis.call('INFO', 'stats'), 'evicted_keys:[1-9]') then
      why = 'evicted'
    end
  else
    if not raises then raised, longest = false, known end
    if of == run and ends == '0' and not raised and epoch == last then return nil end
    if raised and not starts_empty then ends = (ends == '0' and now or ends) + longest - known end
    -- No wait has to be longer than that. More is left if the clock was set back.
    rest = math.max(0, math.min(ends - now, longest + later))
    if watched and (of ~= run or last >= 0 and epoch > last) then
      rest, why = longest + later, 'restarted'
    elseif of ~= run then
      local since_start = math.min(rest_of_uptime(info, longest, tonumber(time[2])), longest)
      if since_start >= rest then rest, why = since_start, 'restarted' end
    end
  end
  -- Write only a change, since each write goes to the replicas and the append-only file.
  local written = string.format('%s %.0f %s %.0f', run or '0', rest > 0 and now + rest or 0, why, longest)
  if epoch >= 0 then written = string.format('%s %.0f', written, epoch) end
  if written ~= found then redis.call('SET', marker, written) end
  if rest == 0 then return nil end
  return {2, rest, WHY[why]}
end
