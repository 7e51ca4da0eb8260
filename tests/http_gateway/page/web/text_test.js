import {count, duration, rate, share, tokens} from '../page/text.js';
import {equal, test} from './cases.js';

test('numbers for people', () => {
  equal([count(1234567), count(0), tokens(1), tokens(2000)], ['1,234,567', '0', '1 token', '2,000 tokens']);
  equal([rate(0), rate(1.234), rate(12.34), rate(1234)], ['0/s', '1.23/s', '12.3/s', '1,234/s']);
  equal([share(0), share(0.0123), share(0.5), share(1)], ['0 %', '1.2 %', '50 %', '100 %']);
  equal([duration(12.3), duration(1234), duration(12345)], ['12 ms', '1.23 s', '12.3 s']);
});
