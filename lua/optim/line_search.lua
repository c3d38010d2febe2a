--- A step length that satisfies the strong Wolfe conditions (Nocedal and Wright, Numerical Optimization, 2006,
-- algorithms 3.5 and 3.6): f(t) <= f(0) + c1 t f'(0) and |f'(t)| <= c2 |f'(0)|.
--
-- A point of the search is a table {t, f, slope, ...}; what `evaluate` puts in besides is the caller's own.
local c1, c2 = 1e-4, 0.9

-- Where the cubic through two points with their slopes has its minimum, kept within [low, high]; their middle where
-- it has none. Equation 3.59 of the book.
local function cubic_minimum(a, b, low, high)
  local d1 = a.slope + b.slope - 3 * (a.f - b.f) / (a.t - b.t)
  local square = d1 * d1 - a.slope * b.slope
  local t
  if square >= 0 then
    local d2 = math.sqrt(square)
    if b.t < a.t then d2 = -d2 end
    t = b.t - (b.t - a.t) * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2)
  end
  if not t or t ~= t then return (low + high) / 2 end
  return math.min(math.max(t, low), high)
end

-- Not a number counts as too large.
local function too_high(point, start)
  return point.f ~= point.f or point.f > start.f + c1 * point.t * start.slope
end

local function flat_enough(point, start) return math.abs(point.slope) <= -c2 * start.slope end

-- Narrows [low, high], which holds a good step, from its better end.
local function zoom(evaluate, start, low, high, tries, tolerance)
  for _ = 1, tries do
    local left, right = math.min(low.t, high.t), math.max(low.t, high.t)
    if right - left < tolerance then break end
    -- Not nearer than a tenth of the interval to an end, so that it shrinks.
    local margin = 0.1 * (right - left)
    local point = evaluate(cubic_minimum(low, high, left + margin, right - margin))
    if too_high(point, start) or point.f >= low.f then
      high = point
    elseif flat_enough(point, start) then
      return point
    else
      if point.slope * (high.t - low.t) >= 0 then high = low end
      low = point
    end
  end
  return low
end

--- evaluate(t) -> point; start: the point at t = 0, with a slope below 0; t: the first step tried; at most `tries`
-- evaluations in both phases together; intervals shorter than `tolerance` are not divided further. Returns the best
-- point found, which may be `start`.
return function(evaluate, start, t, tries, tolerance)
  local previous = start
  for i = 1, tries do
    local point = evaluate(t)
    if too_high(point, start) or (i > 1 and point.f >= previous.f) then
      return zoom(evaluate, start, previous, point, tries - i, tolerance)
    end
    if flat_enough(point, start) then return point end
    if point.slope >= 0 then return zoom(evaluate, start, point, previous, tries - i, tolerance) end
    t = cubic_minimum(previous, point, t + 0.01 * (t - previous.t), t * 10)
    previous = point
  end
  return previous
end
