-- Fair lanes: every change that oncommit makes to Redis, each command one atomic step.
--
-- lanes.py puts a first line before this text and registers it twice: `#!lua` (refused, untouched, when
-- Redis is full: publish, send) and `#!lua flags=allow-oom` (everything that makes Redis emptier).
--
-- KEYS[1]  the namespace; all keys lie under it
-- ARGV     command, what the server's clock says (ms; empty: ask it, a number only in tests), then from
--          ARGV[3] on what the command's own comment lists
--
-- {ns}:token    hash    epoch, seq, run_id, pos.* : who wrote last, and up to where it had read
-- {ns}:limits   hash    lane -> "version max_running weight rate burst paused"; `*` is the global row
-- {ns}:clock    hash    last (ms): script time of the last call; shift (ms): script time less the server's;
--                       served (ms): time in which Redis really served; open_at (served ms) after a loss
-- {ns}:queues   set     queues that ever held a message: a setting has to reach their lanes
-- per queue, {ns}:{queue}:
--   messages            hash  id -> "score body"; score = priority * 2^48 + intent id, lower first
--   lane:{lane}         zset  id by score: what may run now
--   delayed             zset  id by due time, ms
--   held:{consumer}     zset  id by score: in flight there
--   holder              hash  id -> consumer
--   running:{lane}      set   ids in flight; its size is what max_running bounds
--   following           hash  id -> "due score body": a newer intent of an id in flight, to come after it
--   where               hash  lane -> ring | ring N (credit left) | full | throttled | paused | closed
--   ring                zset  lane by turn: exactly the lanes whose first message may start now
--   throttled           zset  lane by the time at which it may start again, ms
--   rate                zset  lane by the time at which its bucket is full again, ms; gone when full
--   consumers           zset  consumer by served time of its last call, ms
--   wake                list  one token for each consumer that should look again
--
-- A lane with waiting messages has exactly one entry in `where`; an empty one has none. Empty things
-- leave no key. A message's lane is its id up to the first `|`.
--
-- An id names one intent at a time; when it is used again, the intent with the higher number counts. One
-- that waits is replaced. One in flight goes on, without its body in `messages`: whatever ends it finds
-- the newer one in `following` instead.

local call = redis.call
local ns = KEYS[1]

-- A consumer that has not called for so long (of served time, ms) is dead: ten missed beats.
local DEAD_AFTER = 10000
-- Between two calls no more than this counts as served (ms): consumers call at least every 1,000. Less
-- than OPEN_AFTER, so that one long silence opens no lane.
local SERVED_STEP = 1100
-- After a loss lanes stay closed for one beat (1,000 ms, served) and its way here, so that caps hold.
local OPEN_AFTER = 1200
-- A lane that the database said is paused or full is left alone for so long, ms.
local HOLD = 250
-- Upper bound of what one fetch tidies of each kind; the rest waits for the next fetch.
local TIDY = 128
-- Rows, and places of lanes, that are looked up in one go: those of one publish, and well within Lua's stack.
local LOOK = 500
-- A score is priority * INTENTS + intent id.
local INTENTS = 2 ^ 48
-- Lanes that one call of `page` looks at: well below a millisecond.
local PAGE = 250
-- How many delayed messages `busy` sorts by lane: about a millisecond.
local NEXT_DUE = 2000
-- The longest that a consumer waits before it looks again, ms.
local LONGEST_WAIT = 1000

local TOKEN, LIMITS, CLOCK, QUEUES = ns .. ':token', ns .. ':limits', ns .. ':clock', ns .. ':queues'

local known = {}
local function queue(name)
  local q = known[name]
  if not q then
    local p = ns .. ':' .. name .. ':'
    q = { messages = p .. 'messages', lane = p .. 'lane:', delayed = p .. 'delayed', held = p .. 'held:',
          holder = p .. 'holder', running = p .. 'running:', where = p .. 'where', ring = p .. 'ring',
          throttled = p .. 'throttled', rate = p .. 'rate', consumers = p .. 'consumers', wake = p .. 'wake',
          following = p .. 'following', came = {} }
    known[name] = q
  end
  return q
end

local function lane_of(id)
  return string.match(id, '^[^|]*')
end

-- Time --------------------------------------------------------------------------------------------

-- `now`, script time, is the server's clock plus a shift that makes good for each step back (NTP, a new
-- master whose clock is behind): it never goes back, and goes on at once where it was, so that a step of
-- an hour does not hold up what is due in a second. Nobody compares it with another clock.
--
-- A step forward cannot be told from an outage by a script that has no other clock, and counts as time
-- that passed: what is delayed comes early, once, and buckets are full. That is harmless: a retry's pause is
-- cut short, attempts are counted in PostgreSQL. The other choice, to let time pass only while Redis
-- serves, would make each retry late by the length of each outage, and outages are the common thing.
-- Who lives, and when lanes open after a loss, is a matter of served time: no step forward hastens it.
local now, served, open_at
local function tick()
  local c = call('HMGET', CLOCK, 'last', 'shift', 'served', 'open_at')
  local clock, last, shift = tonumber(ARGV[2]), tonumber(c[1]), tonumber(c[2]) or 0
  if not clock then
    local t = call('TIME')
    clock = t[1] * 1000 + math.floor(t[2] / 1000)
  end
  now = clock + shift
  if last and now < last then
    now = last
    call('HSET', CLOCK, 'shift', last - clock)
  end
  -- Lost or new: start at script time, which served time never overtakes.
  served = (tonumber(c[3]) or now) + math.min(now - (last or now), SERVED_STEP)
  open_at = tonumber(c[4])
  call('HSET', CLOCK, 'last', now, 'served', served)
end

-- Limits ------------------------------------------------------------------------------------------

local settings = {}
local function limits(lane)
  local l = settings[lane]
  if l == nil then
    l = false
    local packed = call('HGET', LIMITS, lane)
    if packed then
      local version, max, weight, rate, burst, paused =
        string.match(packed, '^(%d+) (%S+) (%d+) (%S+) (%d+) ([01])$')
      rate = tonumber(rate)
      l = { version = tonumber(version), max = tonumber(max), weight = tonumber(weight),
            burst = tonumber(burst), paused = paused == '1', interval = rate and 1000 / rate }
    end
    settings[lane] = l
  end
  return l
end

local function all_paused()
  local l = limits('*')
  return l and l.paused
end

-- The bucket is kept as one time: when it is full again. Each start moves that by one interval, so
-- any window of w ms sees at most burst + w / interval starts.
local function full_at(q, lane)
  return math.max(tonumber(call('ZSCORE', q.rate, lane)) or now, now)
end

local function tokens(l, at)
  -- A thousandth of a token: times of 1.7e12 ms are exact to 0.0002 only.
  return math.floor((now - at) / l.interval + l.burst + 0.001)
end

local function next_token(l, at)
  return math.max(math.ceil(at - (l.burst - 1) * l.interval), now + 1)
end

local function refund_token(q, lane)
  local l = limits(lane)
  if l and l.interval and call('ZSCORE', q.rate, lane) then
    call('ZINCRBY', q.rate, -l.interval, lane)
  end
end

-- Lanes -------------------------------------------------------------------------------------------

local function wake(q, n)
  n = math.min(n, call('ZCARD', q.consumers) - call('LLEN', q.wake))
  for _ = 1, n do
    call('LPUSH', q.wake, '1')
  end
end

local function forget(q, consumer)
  call('ZREM', q.consumers, consumer)
  local left = call('ZCARD', q.consumers)
  if left == 0 then
    call('DEL', q.wake)
  else
    call('LTRIM', q.wake, 0, left - 1)
  end
end

local function to_tail(q, lane)
  if not q.tail then
    q.tail = tonumber(call('ZRANGE', q.ring, -1, -1, 'WITHSCORES')[2]) or 0
  end
  q.tail = q.tail + 1
  call('ZADD', q.ring, q.tail, lane)
end

-- Where a lane with waiting messages belongs now; for a throttled one also until when.
local function verdict(q, lane)
  local l = limits(lane)
  if not l then
    return 'closed'
  elseif l.paused then
    return 'paused'
  elseif l.max and call('SCARD', q.running .. lane) >= l.max then
    return 'full'
  elseif l.interval then
    local at = full_at(q, lane)
    if tokens(l, at) < 1 then
      return 'throttled', next_token(l, at)
    end
  end
  return 'ring'
end

-- Move a lane from where it was (its entry in `where`, or false) to where it shall be (nil: nowhere).
local function move(q, lane, entry, to, due)
  local from = entry and string.match(entry, '^%a+')
  if from == 'ring' and to ~= 'ring' then
    call('ZREM', q.ring, lane)
  elseif from == 'throttled' and to ~= 'throttled' then
    call('ZREM', q.throttled, lane)
  end
  if to == 'ring' and from ~= 'ring' then
    to_tail(q, lane)
  elseif to == 'throttled' then
    call('ZADD', q.throttled, due, lane)
  end
  if not to then
    call('HDEL', q.where, lane)
  elseif from ~= to then
    call('HSET', q.where, lane, to)
  end
end

-- Put a lane where it belongs. Returns 'ring', ..., or nil when nothing waits in it.
local function place(q, lane)
  local entry = call('HGET', q.where, lane)
  if call('EXISTS', q.lane .. lane) == 0 then
    if entry then
      move(q, lane, entry, nil)
    end
    return nil
  end
  local to, due = verdict(q, lane)
  move(q, lane, entry, to, due)
  return to
end

-- A message came into this lane, or waits in it and was met (`heal`): `settle_in` sees to its place.
local function arrive(q, lane, heal)
  if q.came[lane] == nil then
    q.came[lane] = false
    q.came[#q.came + 1] = lane
  end
  q.came[lane] = q.came[lane] or heal or false
end

-- Messages ----------------------------------------------------------------------------------------

local function score_of(q, id)
  local value = call('HGET', q.messages, id)
  return value and string.match(value, '^%d+')
end

local function hold(q, consumer, id, score)
  call('ZADD', q.held .. consumer, score, id)
  call('HSET', q.holder, id, consumer)
  call('SADD', q.running .. lane_of(id), id)
end

local function unhold(q, consumer, id)
  call('ZREM', q.held .. consumer, id)
  call('HDEL', q.holder, id)
  call('SREM', q.running .. lane_of(id), id)
end

-- The consumer that has this message in flight and is alive, or false. A mark of one that is not goes, and
-- with it what its lane may have been full of.
local function live_holder(q, id)
  local owner = call('HGET', q.holder, id)
  if owner and call('ZSCORE', q.consumers, owner) and call('ZSCORE', q.held .. owner, id) then
    return owner
  elseif owner then
    unhold(q, owner, id)
    if place(q, lane_of(id)) == 'ring' then
      wake(q, 1)
    end
  end
  return false
end

-- Drop the marks that nobody's message made: a lane may not be full of them. At most max_running or so.
local function forget_marks(q, lane)
  for _, id in ipairs(call('SMEMBERS', q.running .. lane)) do
    if not live_holder(q, id) then
      call('SREM', q.running .. lane, id)
    end
  end
end

-- Give the lanes that messages came into a place if they have none: one look for all of them, so that a
-- call costs the same whether its messages are of one lane or of many. A lane to heal may be one that
-- part of Redis has forgotten: the audit meets every waiting message.
local function settle_in(q)
  local came = q.came
  q.came = {}
  for first = 1, #came, LOOK do
    local last = math.min(first + LOOK - 1, #came)
    local entries = call('HMGET', q.where, unpack(came, first, last))
    for i = first, last do
      local lane, entry = came[i], entries[i - first + 1]
      if came[lane] then
        local from = entry and string.match(entry, '^%a+')
        if (from == 'ring' and not call('ZSCORE', q.ring, lane))
            or (from == 'throttled' and not call('ZSCORE', q.throttled, lane)) then
          call('HDEL', q.where, lane)
        end
        local to = place(q, lane)
        if to == 'full' then
          forget_marks(q, lane)
          to = place(q, lane)
        end
        if to == 'ring' then
          wake(q, 1)
        end
      elseif not entry then
        place(q, lane)
      end
    end
  end
end

local function intent_of(score)
  return tonumber(score) % INTENTS
end

-- Alive: its body is known, and it is in a lane, delayed, or held by a live consumer; or it follows one
-- that is held. Returns 'lane', 'delayed', 'held', or false; and the intent that the id stands for.
local function alive(q, id)
  local score = score_of(q, id)
  if not score then
    local value = call('HGET', q.following, id)
    if value and live_holder(q, id) then
      return 'held', intent_of(string.match(value, '^%d+ (%d+)'))
    elseif value then
      call('HDEL', q.following, id)
    end
    return false
  end
  local intent = intent_of(score)
  if call('ZSCORE', q.lane .. lane_of(id), id) then
    arrive(q, lane_of(id), true)
    return 'lane', intent
  elseif call('ZSCORE', q.delayed, id) then
    return 'delayed', intent
  end
  return live_holder(q, id) and 'held', intent
end

local function delay(q, id, ms)
  call('ZADD', q.delayed, now + ms, id)
  -- If it is the next one due, somebody's wait has become too long.
  return call('ZRANGE', q.delayed, 0, 0)[1] == id
end

-- Let this intent come when what is in flight under its id ends. `value`: "score body".
local function queue_up(q, id, ms, value)
  call('HDEL', q.messages, id)
  call('HSET', q.following, id, string.format('%.0f ', now + ms) .. value)
end

-- A message in flight has ended, and its body is not here: the intent that follows it comes. Returns
-- whether it went to its lane, and whether somebody has to look at the delayed ones.
local function follow(q, id)
  local value = call('HGET', q.following, id)
  if not value then
    return false, false
  end
  call('HDEL', q.following, id)
  local due, score, body = string.match(value, '^(%d+) (%d+) (.*)$')
  call('HSET', q.messages, id, score .. ' ' .. body)
  if tonumber(due) > now then
    return false, delay(q, id, due - now)
  end
  call('ZADD', q.lane .. lane_of(id), score, id)
  return true, false
end

-- Give a held message back to its lane. One whose body is not known is forgotten: the relay has it.
local function give_back(q, consumer, id, score)
  unhold(q, consumer, id)
  if call('HEXISTS', q.messages, id) == 1 then
    call('ZADD', q.lane .. lane_of(id), score, id)
  else
    follow(q, id)
  end
end

-- ack | defer | refund | hold | requeue of one message. refund = defer of a message that was not
-- started: its token and its turn come back; hold = refund, and the lane is left alone for a moment;
-- requeue = back to the lane, not started. Only what this consumer holds. Returns the number of
-- messages that became ready, and whether somebody has to look at the delayed ones.
local function settle(q, consumer, verb, id, ms)
  local score = verb == 'requeue' and (call('ZSCORE', q.held .. consumer, id) or score_of(q, id))
  if call('ZREM', q.held .. consumer, id) == 0 and call('HGET', q.holder, id) ~= consumer then
    return 0, false
  end
  local lane, came, soonest = lane_of(id), false, false
  call('HDEL', q.holder, id)
  call('SREM', q.running .. lane, id)
  if call(verb == 'ack' and 'HDEL' or 'HEXISTS', q.messages, id) == 0 then
    came, soonest = follow(q, id)
  elseif score then
    call('ZADD', q.lane .. lane, score, id)
    came = true
  elseif verb ~= 'ack' then
    soonest = delay(q, id, ms)
  end
  local refund = verb == 'refund' or verb == 'hold' or verb == 'requeue'
  if refund then
    refund_token(q, lane)
  end
  local entry = call('HGET', q.where, lane)
  local credit = refund and entry and string.match(entry, '^ring (%d+)$')
  if credit then
    call('HSET', q.where, lane, 'ring ' .. math.min(credit + 1, limits(lane).weight))
  end
  if came and not entry then
    entry = place(q, lane)
    if verb ~= 'hold' then
      return entry == 'ring' and 1 or 0, soonest
    end
  end
  if verb == 'hold' then
    if entry and entry ~= 'paused' and entry ~= 'closed' then
      move(q, lane, entry, 'throttled', now + HOLD)
    end
    return 0, true
  end
  -- An ack does not end a hold; it does end being full.
  if entry == 'full' or (refund and entry == 'throttled') then
    return place(q, lane) == 'ring' and 1 or 0, soonest
  end
  return 0, soonest
end

-- Settle the triples (verb, id, ms) of ARGV from `first` on.
local function settle_all(q, consumer, first)
  local ready, soonest = 0, false
  for i = first, #ARGV, 3 do
    local r, s = settle(q, consumer, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]))
    ready, soonest = ready + r, soonest or s
  end
  return ready, soonest
end

-- Fetch -------------------------------------------------------------------------------------------

-- Make ready what time has made ready. Returns how many messages or lanes, and whether more is due.
local function due(q)
  local opened = 0
  local ids = call('ZRANGEBYSCORE', q.delayed, '-inf', now, 'LIMIT', 0, TIDY)
  for _, id in ipairs(ids) do
    call('ZREM', q.delayed, id)
    local score = score_of(q, id)
    if score then
      call('ZADD', q.lane .. lane_of(id), score, id)
      arrive(q, lane_of(id))
      opened = opened + 1
    end
  end
  settle_in(q)
  local lanes = call('ZRANGEBYSCORE', q.throttled, '-inf', now, 'LIMIT', 0, TIDY)
  for _, lane in ipairs(lanes) do
    local to = place(q, lane)
    if to == 'ring' then
      opened = opened + 1
    end
    if to ~= 'throttled' then
      call('ZREM', q.throttled, lane)  -- also where `where` was lost: nobody may wait for it again and again
    end
  end
  call('ZREMRANGEBYSCORE', q.rate, '-inf', now)
  return opened, #ids == TIDY or #lanes == TIDY
end

-- Give back what dead consumers held. Returns how many messages.
local function bury(q)
  local dead = call('ZRANGEBYSCORE', q.consumers, '-inf', '(' .. string.format('%.0f', served - DEAD_AFTER), 'LIMIT', 0, 1)[1]
  if not dead then
    return 0
  end
  local held = call('ZRANGE', q.held .. dead, 0, TIDY - 1, 'WITHSCORES')
  for i = 1, #held, 2 do
    give_back(q, dead, held[i], held[i + 1])
    place(q, lane_of(held[i]))
  end
  if #held < 2 * TIDY then
    forget(q, dead)
  end
  return #held / 2
end

-- Let the first lane of the ring have its turn, at most `n` messages of it.
local function turn(q, lane, n, ids, scores)
  local l, running, at = limits(lane), 0, nil
  local entry = (not l or l.weight > 1) and call('HGET', q.where, lane)
  local credit = entry and tonumber(string.match(entry, '^ring (%d+)$')) or (l and l.weight)
  local room = l and math.min(n, credit) or 0
  if l and l.max then
    running = call('SCARD', q.running .. lane)
    room = math.min(room, l.max - running)
  end
  if l and l.interval then
    at = full_at(q, lane)
    room = math.min(room, tokens(l, at))
  end
  local popped = room > 0 and call('ZPOPMIN', q.lane .. lane, room) or {}
  if #popped == 0 then
    -- Only if part of Redis was lost: the ring holds none but lanes that may start.
    call('ZREM', q.ring, lane)
    call('HDEL', q.where, lane)
    local to, due_at = verdict(q, lane)
    if to ~= 'ring' and call('EXISTS', q.lane .. lane) == 1 then
      move(q, lane, false, to, due_at)
    end
    return
  end
  local taken = #popped / 2
  local marks = {}
  for i = 1, #popped, 2 do
    ids[#ids + 1], scores[#scores + 1] = popped[i], popped[i + 1]
    marks[#marks + 1] = popped[i]
  end
  call('SADD', q.running .. lane, unpack(marks))
  if at then
    at = at + taken * l.interval
    call('ZADD', q.rate, at, lane)
  end
  local left = credit - taken
  if call('EXISTS', q.lane .. lane) == 0 then
    call('ZREM', q.ring, lane)
    call('HDEL', q.where, lane)
  elseif l.max and running + taken >= l.max then
    move(q, lane, 'ring', 'full')
  elseif at and tokens(l, at) < 1 then
    move(q, lane, 'ring', 'throttled', next_token(l, at))
  elseif left > 0 then
    call('HSET', q.where, lane, 'ring ' .. left)
  else
    to_tail(q, lane)
    if l.weight > 1 then
      call('HSET', q.where, lane, 'ring')
    end
  end
end

-- Take up to `n` messages, lane by lane. Appends id, body, ... to `reply`; returns how many.
local function take(q, consumer, n, reply)
  local ids, scores = {}, {}
  while #ids < n do
    local lane = call('ZRANGE', q.ring, 0, 0)[1]
    if not lane then
      break
    end
    turn(q, lane, n - #ids, ids, scores)
  end
  if #ids == 0 then
    return 0
  end
  local bodies = call('HMGET', q.messages, unpack(ids))
  local held, holders, count = {}, {}, 0
  for i, id in ipairs(ids) do
    if bodies[i] then
      held[#held + 1], held[#held + 2] = scores[i], id
      holders[#holders + 1], holders[#holders + 2] = id, consumer
      local space = string.find(bodies[i], ' ', 1, true)
      reply[#reply + 1], reply[#reply + 2] = id, string.sub(bodies[i], 1, space - 1)
      reply[#reply + 1] = string.sub(bodies[i], space + 1)
      count = count + 1
    else
      call('SREM', q.running .. lane_of(id), id)
      place(q, lane_of(id))
    end
  end
  if count > 0 then
    call('ZADD', q.held .. consumer, unpack(held))
    call('HSET', q.holder, unpack(holders))
  end
  return count
end

-- How long until time makes something ready, ms.
local function wait_ms(q)
  local wait = LONGEST_WAIT
  for _, key in ipairs({ q.delayed, q.throttled }) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first then
      wait = math.min(wait, first - now)
    end
  end
  return math.max(wait, 0)
end

-- Commands ----------------------------------------------------------------------------------------

local commands = {}

-- queue, consumer, n, then (verb, id, ms) of what is finished -> wait ms, then id, score, body, ...
function commands.fetch()
  local q, consumer, n = queue(ARGV[3]), ARGV[4], tonumber(ARGV[5])
  call('ZADD', q.consumers, served, consumer)
  local ready, soonest = settle_all(q, consumer, 6)
  local opened, more = due(q)
  ready = ready + opened + bury(q)
  if open_at and served >= open_at then
    call('HDEL', CLOCK, 'open_at')
    open_at = nil
  end
  if open_at or all_paused() then
    if soonest then
      wake(q, 1)
    end
    return { open_at and math.min(open_at - served, LONGEST_WAIT) or LONGEST_WAIT }
  end
  local reply = { 0 }
  local taken = take(q, consumer, n, reply)
  local left = call('EXISTS', q.ring) == 1
  if not left then
    call('DEL', q.wake)
    reply[1] = more and 0 or wait_ms(q)
  end
  if taken >= n and (left or reply[1] < LONGEST_WAIT) and call('LLEN', q.wake) == 0 then
    -- This consumer is busy now: another one has to take the rest, or to mind the clock.
    wake(q, math.max(1, ready - taken))
  end
  return reply
end

-- queue, consumer, then (verb, id, ms): the same without fetching.
function commands.settle()
  local q, consumer = queue(ARGV[3]), ARGV[4]
  call('ZADD', q.consumers, served, consumer)
  local ready, soonest = settle_all(q, consumer, 5)
  wake(q, ready + (soonest and 1 or 0))
  return ready
end

-- queue, consumer, then (id, intent, or 0 if not known): the consumer lives and holds exactly these. What
-- Redis lost, or gave back meanwhile, is its own again, unless another live consumer has it, or the id is a
-- newer intent's by now; what it does not name (a fetch whose reply was lost) goes back. Returns
-- (restored, given back).
function commands.beat()
  local q, consumer = queue(ARGV[3]), ARGV[4]
  call('ZADD', q.consumers, served, consumer)
  local missing, restored, given = {}, 0, 0
  for i = 5, #ARGV, 2 do
    missing[ARGV[i]] = true
  end
  local held = call('ZRANGE', q.held .. consumer, 0, -1, 'WITHSCORES')
  for i = 1, #held, 2 do
    if missing[held[i]] then
      missing[held[i]] = nil
      -- These two may have been lost alone.
      call('HSETNX', q.holder, held[i], consumer)
      call('SADD', q.running .. lane_of(held[i]), held[i])
    else
      give_back(q, consumer, held[i], held[i + 1])
      place(q, lane_of(held[i]))
      given = given + 1
    end
  end
  for i = 5, #ARGV, 2 do
    local id, intent = ARGV[i], tonumber(ARGV[i + 1])
    if missing[id] and not live_holder(q, id) then
      local score = score_of(q, id)
      if not score or intent == 0 or intent_of(score) == intent then
        call('ZREM', q.lane .. lane_of(id), id)
        call('ZREM', q.delayed, id)
        hold(q, consumer, id, score or intent)
        place(q, lane_of(id))
        restored = restored + 1
      end
    end
  end
  wake(q, given)
  return { restored, given }
end

-- queue, consumer: it goes; what it still holds goes back.
function commands.leave()
  local q, consumer = queue(ARGV[3]), ARGV[4]
  local held = call('ZRANGE', q.held .. consumer, 0, -1, 'WITHSCORES')
  for i = 1, #held, 2 do
    settle(q, consumer, 'requeue', held[i], 0)
  end
  forget(q, consumer)
  -- It may have taken a token with it.
  wake(q, math.max(1, #held / 2))
  return #held / 2
end

-- Apply one row of settings if it is newer than what is known; lanes move at once.
local function set_limits(lane, version, packed, replace)
  local old = limits(lane)
  if old and (not replace or old.version >= tonumber(version)) then
    return
  end
  call('HSET', LIMITS, lane, packed)
  settings[lane] = nil
  local new = limits(lane)
  for _, name in ipairs(call('SMEMBERS', QUEUES)) do
    local q = queue(name)
    local at = call('ZSCORE', q.rate, lane)
    if at and new.interval and old and old.interval then
      -- Starts already made stay made: the same number of them, at the new price.
      local starts = math.min(math.max(at - now, 0) / old.interval, new.burst)
      call('ZADD', q.rate, now + starts * new.interval, lane)
    elseif at and not new.interval then
      call('ZREM', q.rate, lane)
    end
    if lane == '*' or place(q, lane) == 'ring' then
      wake(q, math.huge)
    end
  end
end

-- The body of a message in flight is not here. Either it was lost, and a beat restored the mark: it returns.
-- Or a newer intent follows already; or this one does. Returns what the row was.
local function put_in_flight(q, owner, id, score, ms, value)
  local follower = call('HGET', q.following, id)
  local known = follower and string.match(follower, '^%d+ (%d+)') or call('ZSCORE', q.held .. owner, id)
  local intent, latest = intent_of(score), intent_of(known)
  if intent < latest or (follower and intent == latest) then
    call('HDEL', q.messages, id)
    return 'duplicate'
  elseif latest > 0 and intent > latest then
    queue_up(q, id, ms, value)
    return 'new'
  end
  call('ZADD', q.held .. owner, score, id)
  return 'revived'
end

-- One row whose id Redis may know. Returns what it was, and whether somebody has to look.
local function put_one(q, id, ms, value)
  local score, what = string.match(value, '^%d+'), 'new'
  if call('HSETNX', q.messages, id, value) == 1 then
    local owner = live_holder(q, id)
    if owner then
      return put_in_flight(q, owner, id, score, ms, value), false
    end
  else
    local at, intent = alive(q, id)
    if at and intent_of(score) <= intent then
      return 'duplicate', false
    elseif at == 'held' then
      queue_up(q, id, ms, value)
      return 'new', false
    elseif at then
      call('ZREM', q.lane .. lane_of(id), id)
      call('ZREM', q.delayed, id)
    else
      what = 'revived'
    end
    call('HSET', q.messages, id, value)
  end
  if ms > 0 then
    return what, delay(q, id, ms)
  end
  call('ZADD', q.lane .. lane_of(id), score, id)
  arrive(q, lane_of(id))
  return what, true
end

-- Rows (id, value) whose ids Redis does not know: one command for all bodies. Each is put into its lane by itself,
-- so that a message costs as many commands whether a burst is of one team's or of a thousand teams'.
local function put_new(q, rows)
  for i = 1, #rows, 2 do
    local lane = lane_of(rows[i])
    arrive(q, lane)
    call('ZADD', q.lane .. lane, string.match(rows[i + 1], '^%d+'), rows[i])
  end
  call('HSET', q.messages, unpack(rows))
end

-- Rows (id, value) in ARGV from `first` on, of these ids, none twice. Most are of ids that Redis does not know,
-- and are written together. Returns how many somebody has to look at.
local function put_some(q, ms, first, ids, counts)
  local bodies, holders = call('HMGET', q.messages, unpack(ids)), call('HMGET', q.holder, unpack(ids))
  local fresh, ready = {}, 0
  for i, id in ipairs(ids) do
    local value = ARGV[first + 2 * i - 1]
    if bodies[i] or holders[i] or ms > 0 then
      local what, look = put_one(q, id, ms, value)
      counts[what] = counts[what] + 1
      ready = ready + (look and 1 or 0)
    else
      fresh[#fresh + 1], fresh[#fresh + 2] = id, value
    end
  end
  if #fresh > 0 then
    put_new(q, fresh)
  end
  counts.new = counts.new + #fresh / 2
  return ready + #fresh / 2
end

-- Rows in ARGV from `first` on, in runs of one queue and delay: queue, delay ms, how many, then (id, value)
-- of each. Returns new, duplicate, revived.
local function put(first)
  local counts, ready, at = { new = 0, duplicate = 0, revived = 0 }, {}, first
  while ARGV[at] do
    local name, ms, ends = ARGV[at], tonumber(ARGV[at + 1]), at + 3 + 2 * ARGV[at + 2]
    if not ready[name] then
      ready[name] = 0
      call('SADD', QUEUES, name)
    end
    at = at + 3
    while at < ends do
      local ids, seen, from = {}, {}, at
      while at < ends and #ids < LOOK and not seen[ARGV[at]] do
        ids[#ids + 1], seen[ARGV[at]] = ARGV[at], true
        at = at + 2
      end
      ready[name] = ready[name] + put_some(queue(name), ms, from, ids, counts)
    end
  end
  for name, n in pairs(ready) do
    settle_in(queue(name))
    wake(queue(name), n)
  end
  return counts.new, counts.duplicate, counts.revived
end

-- epoch, expected seq, next seq, number of position pairs, pairs, number of limits, (lane, version,
-- packed) each, message rows -> 'ok', new, duplicate, revived | 'same' | 'mismatch', epoch, seq
function commands.publish()
  local epoch, expected, following = ARGV[3], ARGV[4], ARGV[5]
  local stored = call('HMGET', TOKEN, 'epoch', 'seq')
  if stored[1] == epoch and stored[2] == following then
    return { 'same' }
  elseif stored[1] ~= epoch or stored[2] ~= expected then
    return { 'mismatch', stored[1] or '', stored[2] or '' }
  end
  local at, fields = 7 + 2 * ARGV[6], { 'seq', following }
  for i = 7, at - 1, 2 do
    fields[#fields + 1], fields[#fields + 2] = 'pos.' .. ARGV[i], ARGV[i + 1]
  end
  call('HSET', TOKEN, unpack(fields))
  local rows = at + 1 + 3 * ARGV[at]
  for i = at + 1, rows - 1, 3 do
    set_limits(ARGV[i], ARGV[i + 1], ARGV[i + 2], true)
  end
  return { 'ok', put(rows) }
end

-- lane, packed limits for it if it has none, one message row: Dramatiq's plain send(), without a token.
function commands.send()
  set_limits(ARGV[3], 0, ARGV[4], false)
  return { put(5) }
end

-- epoch, forget (0|1) -> 'ok', lost (0|1) | 'mismatch', epoch, seq. Another run of the server, or no
-- token: lost. forget: the settings are of another life of the database; lanes close until told anew.
function commands.seize()
  local epoch, forget = ARGV[3], ARGV[4]
  local stored = call('HMGET', TOKEN, 'epoch', 'seq', 'run_id')
  if stored[1] and tonumber(stored[1]) >= tonumber(epoch) then
    return { 'mismatch', stored[1], stored[2] or '' }
  end
  local run_id = string.match(call('INFO', 'server'), 'run_id:(%w+)')
  local lost = not stored[1] or stored[3] ~= run_id
  call('HSET', TOKEN, 'epoch', epoch, 'seq', 0, 'run_id', run_id)
  if lost then
    call('HSET', CLOCK, 'open_at', served + OPEN_AFTER)
  end
  if forget == '1' then
    call('DEL', LIMITS)
  end
  return { 'ok', lost and 1 or 0 }
end

-- queue, then (id, intent, or 0 if not known) -> the ids that are not alive, or only as an older intent.
-- Lanes that it meets are put in order on the way.
function commands.missing()
  local q, gone = queue(ARGV[3]), {}
  for i = 4, #ARGV, 2 do
    local at, intent = alive(q, ARGV[i])
    if not at or intent < tonumber(ARGV[i + 1]) then
      gone[#gone + 1] = ARGV[i]
    end
  end
  settle_in(q)
  return gone
end

-- queue, number of lanes wanted -> messages, delayed, running, lanes with waiting messages, consumers,
-- next due (ms from now, -1: none), then lane, waiting, running, state of a sample of lanes.
function commands.stats()
  local q, running, seen = queue(ARGV[3]), {}, {}
  for _, id in ipairs(call('HKEYS', q.holder)) do
    running[lane_of(id)] = (running[lane_of(id)] or 0) + 1
  end
  local first = call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]
  local reply = { call('HLEN', q.messages) + call('HLEN', q.following), call('ZCARD', q.delayed), call('HLEN', q.holder),
                  call('HLEN', q.where), call('ZCARD', q.consumers), first and math.max(first - now, 0) or -1 }
  local function add(lane, state)
    if not seen[lane] then
      seen[lane] = true
      reply[#reply + 1], reply[#reply + 2] = lane, call('ZCARD', q.lane .. lane)
      reply[#reply + 1], reply[#reply + 2] = running[lane] or 0, state
    end
  end
  local scan = call('HSCAN', q.where, 0, 'COUNT', ARGV[4])[2]
  for i = 1, #scan, 2 do
    add(scan[i], string.match(scan[i + 1], '^%a+'))
  end
  for lane in pairs(running) do
    add(lane, 'idle')
  end
  return reply
end

-- queue, cursor ('0': the first) -> next cursor, then lane, waiting, state for some of the lanes with
-- waiting messages. Every such lane comes in the end, perhaps twice.
function commands.page()
  local q = queue(ARGV[3])
  local scan = call('HSCAN', q.where, ARGV[4], 'COUNT', PAGE)
  local reply = { scan[1] }
  for i = 1, #scan[2], 2 do
    local lane = scan[2][i]
    reply[#reply + 1], reply[#reply + 2] = lane, call('ZCARD', q.lane .. lane)
    reply[#reply + 1] = string.match(scan[2][i + 1], '^%a+')
  end
  return reply
end

-- queue -> delayed in all, then lane, delayed (among the next due only), running of each lane with any
function commands.busy()
  local q, delayed, running = queue(ARGV[3]), {}, {}
  for _, id in ipairs(call('ZRANGE', q.delayed, 0, NEXT_DUE - 1)) do
    delayed[lane_of(id)] = (delayed[lane_of(id)] or 0) + 1
  end
  for _, id in ipairs(call('HKEYS', q.holder)) do
    running[lane_of(id)] = (running[lane_of(id)] or 0) + 1
    delayed[lane_of(id)] = delayed[lane_of(id)] or 0
  end
  local reply = { call('ZCARD', q.delayed) }
  for lane, count in pairs(delayed) do
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = lane, count, running[lane] or 0
  end
  return reply
end

-- queue, lane or '' -> messages dropped: all that wait, are delayed or follow; what is in flight stays.
function commands.purge()
  local q, only, dropped = queue(ARGV[3]), ARGV[4], 0
  for _, lane in ipairs(only ~= '' and { only } or call('HKEYS', q.where)) do
    local popped = call('ZPOPMIN', q.lane .. lane, 1000)
    while #popped > 0 do
      for i = 1, #popped, 2 do
        dropped = dropped + call('HDEL', q.messages, popped[i])
      end
      popped = call('ZPOPMIN', q.lane .. lane, 1000)
    end
    place(q, lane)
  end
  for _, id in ipairs(call('ZRANGE', q.delayed, 0, -1)) do
    if only == '' or lane_of(id) == only then
      call('ZREM', q.delayed, id)
      dropped = dropped + call('HDEL', q.messages, id)
    end
  end
  for _, id in ipairs(call('HKEYS', q.following)) do
    if only == '' or lane_of(id) == only then
      dropped = dropped + call('HDEL', q.following, id)
    end
  end
  return dropped
end

tick()
return commands[ARGV[1]]()
